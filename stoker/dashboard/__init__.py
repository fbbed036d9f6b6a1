"""What runs tell, dead or alive: pages for a browser, and files for other programs."""
