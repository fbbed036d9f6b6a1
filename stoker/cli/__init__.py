"""The command line: flags in, words out. Everything it shows is measured elsewhere."""
