"""What tests need to hold the chart's dashboards and alerts to what the programs really export.

dashboards: reads Grafana's JSON. exported: the metrics and labels that the code exports. expressions: which labels a
PromQL expression can have. prometheus: Debian's promtool and Prometheus, fetched and run; `python -m monitoring`
fetches them.
"""
