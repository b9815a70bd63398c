"""The HTTP API over runs' folders, and the one page that shows them; needs the extra `web`."""
