"""What is counted and how it is shown: every series' name, type, labels and meaning; no numbers of its own."""
