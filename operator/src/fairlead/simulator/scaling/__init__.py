"""The autoscaler and formulas of other projects on the same loads, over `ScaledFleet`: loads, recordings, policies, a
trial of one policy on one load, and estimates over seeds. Pure but for `Recording`, which reads a file."""
