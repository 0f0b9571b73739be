"""The report: its tables, its charts, and the HTML file that holds them."""
