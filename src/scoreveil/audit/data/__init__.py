"""What is attacked: score vectors of records, and labelled images."""
