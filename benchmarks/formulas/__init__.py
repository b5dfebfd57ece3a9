"""Formulas of Lockstep and of six other libraries on the same rollouts, against the papers'
equations in float64.
"""
