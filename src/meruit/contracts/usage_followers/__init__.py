"""What happens to a contract when the usage of its runs is recorded; one file per follower."""
