"""Tables and SQL of reviews, their draws and labels."""
