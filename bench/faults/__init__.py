"""Faults, planted into real runs and counted: kills, full disks, damaged and hostile files, and what follows."""
