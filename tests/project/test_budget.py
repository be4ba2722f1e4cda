import budget


def test_tests_stay_within_their_budget():
    tests, package = budget.counted()
    assert tests / package <= budget.most(), budget.sentence(tests, package)
