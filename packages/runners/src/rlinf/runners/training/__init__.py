"""What workers share that train: devices, shares of the data, weights on their way, and checks of the numbers."""
