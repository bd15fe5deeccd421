"""./tw report: one HTML file of the committed results, with the seeds' claims judged by them."""
