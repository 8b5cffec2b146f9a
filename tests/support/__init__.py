"""What several layers of the tests share."""
