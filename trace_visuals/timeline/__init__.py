"""The timeline figure: what it reads from traces, its rows, and how it is drawn."""
