"""The oracle for custom resources: Kubernetes' own apiextensions-apiserver, built here and run beside the tests.

It serves CustomResourceDefinitions and their objects and nothing else: no core API, no namespaces, no admission.
`python -m oracle {build,up,down}` from a shell (with `e2e` on the path), `Oracle.up()` from a test. Debian's `unstable`
packages its source as a Go library with all that it depends on; `build` compiles that, once per set of versions.
"""
