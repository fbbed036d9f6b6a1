"""Crawl: an agent finds targets on a web site, over HTTP and under a budget of requests."""
