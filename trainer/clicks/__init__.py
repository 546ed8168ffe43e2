"""Training on clicks: corrections of position bias."""
