"""What several providers share: HTTP client, paging, files."""
