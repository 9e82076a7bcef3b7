"""Simulated runs drawn at random, each of which must keep every promise: `sao-gym soak`.

    draw -> Case -> whole run ............................ invariants, an allowed end
                    again ................................ the same lines, the same checkpoints
                    on from a checkpoint ................. the same rest
                    interrupted anywhere, then on ........ the same whole
                    recorded, cut like a killed run, on .. the same bytes

A case is plain data, so one that fails can be shrunk, written to a file and played again.
"""
