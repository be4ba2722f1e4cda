import captum.attr

from saliency_bench import load_explainer


def test_agrees_with_captum(peer, error_of):
    ours = load_explainer("input_x_gradient")(peer.classifier, peer.images, peer.target)
    theirs = captum.attr.InputXGradient(peer.model).attribute(peer.inputs, target=peer.labels).sum(dim=1)
    assert error_of(ours, theirs) <= 1e-4
