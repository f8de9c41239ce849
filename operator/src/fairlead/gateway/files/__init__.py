"""Files of clients, `/v1/files`: rows in the gateway's database, bytes in a folder or a bucket."""
