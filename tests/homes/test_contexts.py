"""Which clusters the end-to-end suite may be let loose on."""

import pytest
from homes.contexts import TEST_PATTERNS, VARIABLE, NotForTests, context_for_tests


def kubeconfig(current: str, *others: str) -> dict:
    return {"current-context": current, "contexts": [{"name": name} for name in (current, *others) if name]}


@pytest.mark.parametrize(
    "name", ["kind-kind", "kind-fairlead", "k3d-dev", "minikube", "fairlead-e2e", "fairlead-e2e-2"]
)
def test_a_cluster_that_is_called_like_a_test_cluster_is_taken(name: str) -> None:
    assert context_for_tests(kubeconfig(name)) == name


@pytest.mark.parametrize("name", ["production", "kind", "arn:aws:eks:eu-west-1:1:cluster/kind-of", "default", "KIND-X"])
def test_any_other_is_refused_with_how_to_say_otherwise(name: str) -> None:
    with pytest.raises(NotForTests) as refusal:
        context_for_tests(kubeconfig(name))
    assert f"{VARIABLE}={name}" in str(refusal.value)
    assert all(pattern in str(refusal.value) for pattern in TEST_PATTERNS)


def test_a_context_that_is_named_is_taken_whatever_it_is_called() -> None:
    assert context_for_tests(kubeconfig("production", "staging"), "staging") == "staging"


def test_a_context_that_is_named_and_unknown_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(NotForTests, match="kind-a, production"):
        context_for_tests(kubeconfig("production", "kind-a"), "kind-b")


@pytest.mark.parametrize("empty", [{}, {"contexts": None}, {"current-context": "", "contexts": []}])
def test_a_kubeconfig_without_a_current_context_is_refused(empty: dict) -> None:
    with pytest.raises(NotForTests, match="no current context"):
        context_for_tests(empty)
