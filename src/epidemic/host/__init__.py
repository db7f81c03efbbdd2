"""What every host of nodes does alike, whether it hosts all of them (the simulator) or one (a deployed node)."""
