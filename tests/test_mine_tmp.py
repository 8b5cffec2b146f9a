import json, os
from sandboxkit.backend import Backend
from sandboxkit.engines.backend import ENGINE_FEATURES
from sandboxkit._registry import _load
import sandboxkit.conformance  # rewrites
from sandboxkit.conformance._lifecycle_prune import Pruning
from sandboxkit.conformance._lifecycle_pool import Pools
MINE=[Pruning,Pools]
try:
    from sandboxkit.conformance._lifecycle_hooks import HooksSuite; MINE.append(HooksSuite)
except ImportError: pass
try:
    from sandboxkit.conformance._lifecycle_workspaces import Workspaces; MINE.append(Workspaces)
except ImportError: pass
try:
    from sandboxkit.conformance._lifecycle_detached import Detached, TimeToLive; MINE+=[Detached, TimeToLive]
except ImportError: pass
try:
    from sandboxkit.conformance._lifecycle_resume import Resuming; MINE+=[Resuming]
except ImportError: pass
engines=json.loads(__import__('pathlib').Path('/work/main/build/engines.json').read_text())
names=['docker','podman','rootless']
for e,n in zip(engines,names):
    if n not in os.environ.get('ENG','docker podman rootless').split(): continue
    for base in MINE:
        def make(e=e):
            @classmethod
            def make_backend(cls): return _load(e['backend']).connect(e['url'])
            return make_backend
        globals()[f'Test{n.title()}{base.__name__}']=type(f'Test{n.title()}{base.__name__}',(base,),{'features':ENGINE_FEATURES,'images':{k:f'sandboxkit-test/{v}' for k,v in dict(shell='busybox',python='python',empty='empty',static='static',nonroot='nonroot').items()},'make_backend':make(),'__module__':__name__})
del base, MINE, Pruning, Pools
for k in ('HooksSuite','Workspaces','Detached','TimeToLive','Resuming','Snapshots'): globals().pop(k,None)
