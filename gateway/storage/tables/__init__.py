"""The tables, by what they are about; gateway/storage/schema.py names them all."""
