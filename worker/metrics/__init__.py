"""What a scrape of a worker shows: one snapshot, taken on the loop, put into families in the scrape's own thread."""
