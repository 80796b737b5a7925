"""Diagnosis of this machine: engines, devices, folders, settings, and their problems."""
