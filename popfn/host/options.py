"""The session options of an Ir, under the names of PopART."""

import os
from typing import Any, Dict, Set


class SessionOptions:
    """What `ir._pb_ir.getSessionOptions()` returns: plain attributes, to read and set before a Session exists.

    These have an effect on the host: `enableReplicatedGraphs`, `replicatedGraphCount`,
    `enableDistributedReplicatedGraphs`, `globalReplicationFactor` and `globalReplicaOffset`, which
    `Ir.replication_factor` reads and sets, `partialsTypeMatMuls`, and `dotChecks`. All others describe the
    device only.
    """

    def __init__(self) -> None:
        self.enableReplicatedGraphs = False
        self.replicatedGraphCount = 1
        self.enableDistributedReplicatedGraphs = False
        self.globalReplicationFactor = 1
        self.globalReplicaOffset = 0
        self.partialsTypeMatMuls = ""
        self.dotChecks: Set[str] = set()
        self.numIOTiles = 0
        self.enableStochasticRounding = False
        self.enableFloatingPointChecks = False
        self.cachePath = os.environ.get("POPXL_CACHE_DIR", "")
        self.enableEngineCaching = bool(self.cachePath)
        self.virtualGraphMode = "Manual"
        self.useHostCopyOps = True
        self.aliasZeroCopy = True
        self.enableExplicitMainLoops = True
        self.explicitRecomputation = True
        self.enableInplaceAmbiguityChecking = True
        self.enableVariablesCaching = False
        self.decomposeGradSum = True
        self.enableOutlining = True
        self.outlineThreshold = 1.0
        self.enablePrefetchDatastreams = True
        self.enableReplicatedGraphCopy = True
        self.enableNonStableSoftmax = False
        self.enableFastReduce = False
        self.enablePipelining = False
        self.autoRecomputation = None
        self.groupNormStridedChannelGrouping = False
        self.separateCallOpPdfs = True
        self.opxAliasChecking = False
        self.logDir = ""
        self.engineOptions: Dict[str, str] = {}
        self.convolutionOptions: Dict[str, str] = {}
        self.matmulOptions: Dict[str, str] = {}
        self.lstmOptions: Dict[str, str] = {}
        self.gclOptions: Dict[str, str] = {}
        self.reportOptions: Dict[str, str] = {}

    def __repr__(self) -> str:
        return f"SessionOptions({vars(self)})"


class Backend:
    """The part of PopART's Ir that PopXL programs reach for: `ir._pb_ir`."""

    def __init__(self) -> None:
        self._options = SessionOptions()

    def getSessionOptions(self) -> SessionOptions:
        """Return the options, which can be set."""
        return self._options

    def setSessionOptions(self, options: Any) -> None:
        """Replace the options."""
        self._options = options
