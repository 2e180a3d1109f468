"""The words of environments: initial states, action chunks, and the robots that some of them are."""
