"""The trace store: schema, writer, reader and crash recovery. Imports no other room."""
