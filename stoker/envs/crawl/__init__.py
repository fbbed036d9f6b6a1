"""Crawl: an agent finds pages of a site over HTTP, through a client that keeps to its limits."""
