"""What runs the processes of a cluster: Ray, or this process."""
