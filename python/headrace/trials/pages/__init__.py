"""The results of a run for people: charts, HTML page, summary in sentences."""
