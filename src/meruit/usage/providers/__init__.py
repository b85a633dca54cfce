"""Who counts tokens for others, one file each, and what responses say themselves."""
