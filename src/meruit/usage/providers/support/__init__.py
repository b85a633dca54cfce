"""What providers share.

- account_settings.py - address, key and options of an account
- source_factory.py - open the source of an account
- http_client.py - requests, on top of `sources.http`
- paging.py - responses in pages, checked
- minute_buckets.py - sources that count by the minute
- file_reader.py - usage files
- usage_blocks.py - the usage block of a response
"""
