"""``python -m tests.deploy.prometheus_rule``: the alerts as the Prometheus operator takes them, for kustomize, which
cannot put a file into a resource. Run it when deploy/prometheus/tiered.rules.yml has changed; a test says so.
"""

from __future__ import annotations

from typing import Final

from tests.deploy.rendering import K8S, ROOT

SOURCE: Final = ROOT / "deploy/prometheus/tiered.rules.yml"
TARGET: Final = K8S / "components/monitoring/rules.yaml"
HEAD: Final = """\
# Made from deploy/prometheus/tiered.rules.yml by `python -m tests.deploy.prometheus_rule`; change it there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: tiered
  labels:
    app.kubernetes.io/name: tiered
    app.kubernetes.io/instance: tiered
    app.kubernetes.io/component: cluster
    app.kubernetes.io/part-of: tiered
spec:
"""


def rule() -> str:
    """The file as it is, two columns further right."""
    lines = SOURCE.read_text(encoding="utf-8").splitlines()
    return HEAD + "".join(f"  {line}".rstrip() + "\n" for line in lines)


if __name__ == "__main__":
    TARGET.write_text(rule(), encoding="utf-8")
