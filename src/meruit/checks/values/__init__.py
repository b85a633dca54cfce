"""Numbers, dates, text and paths as other systems write them."""
