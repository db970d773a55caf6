"""Topologies: who may exchange with whom, what that costs, and what is left of it when ranks are lost."""

from .graph import Graph
from .healing import heal
from .named import TOPOLOGIES, check_topology, neighbours
from .spectrum import LEAST_RATE, Momentum, momentum

__all__ = ["LEAST_RATE", "TOPOLOGIES", "Graph", "Momentum", "check_topology", "heal", "momentum", "neighbours"]
