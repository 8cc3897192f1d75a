"""The decisions of one worker's hot tier: plain synchronous code, one verb a file."""
