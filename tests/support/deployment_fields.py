"""Fields of the Kubernetes objects in `examples/kubernetes`, by hand from the API's reference: core/v1, batch/v1, and
KubeRay's ray.io/v1. A field is a type, a mapping of fields, or a list of either; `*` is any name, `!` a required one.

What is not here is refused by the test, so that a misspelt field, which Kubernetes would drop, is found.
"""

TEXTS = {"*": str}
AMOUNTS = {"*": (str, int)}
METADATA = {"name!": str, "namespace": str, "labels": TEXTS, "annotations": TEXTS}
ENVIRONMENT = [{"name!": str, "value": str}]
CONTAINER = {
    "name!": str,
    "image!": str,
    "imagePullPolicy": str,
    "command": [str],
    "args": [str],
    "env": ENVIRONMENT,
    "ports": [{"name": str, "containerPort!": int}],
    "resources": {"requests": AMOUNTS, "limits": AMOUNTS},
    "volumeMounts": [{"name!": str, "mountPath!": str, "readOnly": bool}],
}
VOLUME = {
    "name!": str,
    "persistentVolumeClaim": {"claimName!": str},
    "configMap": {"name!": str},
    "emptyDir": {"medium": str, "sizeLimit": str},
}
POD = {
    "containers!": [CONTAINER],
    "volumes": [VOLUME],
    "restartPolicy": str,
    "terminationGracePeriodSeconds": int,
    "securityContext": {"runAsNonRoot": bool, "runAsUser": int, "fsGroup": int},
    "nodeSelector": TEXTS,
}
TEMPLATE = {"metadata": {"labels": TEXTS, "annotations": TEXTS}, "spec!": POD}
POLICY = {
    "action!": str,
    "onExitCodes": {"operator!": str, "values!": [int], "containerName": str},
    "onPodConditions": [{"type!": str, "status": str}],
}
CLAIM = {"accessModes!": [str], "resources!": {"requests!": AMOUNTS}, "storageClassName": str}
JOB = {
    "backoffLimit": int,
    "activeDeadlineSeconds": int,
    "podReplacementPolicy": str,
    "podFailurePolicy": {"rules!": [POLICY]},
    "template!": TEMPLATE,
}
RAY_CLUSTER = {
    "rayVersion": str,
    "authOptions": {"mode": str},
    "headGroupSpec!": {"rayStartParams": TEXTS, "template!": TEMPLATE, "serviceType": str},
    "workerGroupSpecs": [
        {
            "groupName!": str,
            "replicas": int,
            "minReplicas": int,
            "maxReplicas": int,
            "rayStartParams": TEXTS,
            "template!": TEMPLATE,
        }
    ],
}
RAY_JOB = {
    "entrypoint": str,
    "shutdownAfterJobFinishes": bool,
    "ttlSecondsAfterFinished": int,
    "activeDeadlineSeconds": int,
    "backoffLimit": int,
    "submissionMode": str,
    "rayClusterSpec": RAY_CLUSTER,
}
KINDS = {
    ("v1", "PersistentVolumeClaim"): {"spec!": CLAIM},
    ("v1", "ConfigMap"): {"data": TEXTS},
    ("batch/v1", "Job"): {"spec!": JOB},
    ("ray.io/v1", "RayJob"): {"spec!": RAY_JOB},
}


def faults(value: object, fields: object, place: str = "") -> list[str]:
    """Where a value is otherwise than its fields say: unknown names, missing ones, wrong types."""
    if isinstance(fields, list):
        if not isinstance(value, list):
            return [f"{place}: not a list"]
        return [fault for number, one in enumerate(value) for fault in faults(one, fields[0], f"{place}[{number}]")]
    if isinstance(fields, dict):
        return _of_mapping(value, fields, place)
    right = isinstance(value, fields) and (fields is bool or not isinstance(value, bool))
    return [] if right else [f"{place}: {value!r} is not of {fields}"]


def _of_mapping(value: object, fields: dict, place: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{place}: not a mapping"]
    known = {name.rstrip("!"): inner for name, inner in fields.items()}
    found = [f"{place}.{name[:-1]}: missing" for name in fields if name.endswith("!") and name[:-1] not in value]
    for name, inner in value.items():
        if name in known or "*" in known:
            found += faults(inner, known.get(name, known.get("*")), f"{place}.{name}")
        else:
            found.append(f"{place}.{name}: no such field")
    return found
