//! The version of this build, in images, samples and the chart.

use crate::files::{below, objects, objects_below, only, strings, text};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const OPERATOR: &str = "kubebrain.io/kubebrain-operator";
const BRAIN: &str = "kubebrain.io/kubebrain";

#[test]
fn the_chart_is_of_this_version() {
    let chart = &objects("helm/kubebrain-operator/Chart.yaml")[0];
    assert_eq!(chart["version"], VERSION);
    assert_eq!(chart["appVersion"], VERSION);
}

#[test]
fn clusters_of_samples_are_of_this_version() {
    let mut clusters = 0;
    for (name, object) in ["yaml/samples", "argocd/tenant"].into_iter().flat_map(objects_below) {
        if object["kind"] == "KubeBrainCluster" {
            assert_eq!(object["spec"]["version"], VERSION, "{name}");
            clusters += 1;
        }
    }
    assert_eq!(clusters, 11);
}

#[test]
fn every_image_of_ours_is_of_this_version() {
    let images = [format!("{OPERATOR}:{VERSION}"), format!("{BRAIN}:{VERSION}")];
    let mut found = 0;
    for name in below("yaml").into_iter().chain(below("argocd")) {
        for line in text(&name).lines() {
            if let Some(image) = line.trim_start().strip_prefix("image: kubebrain.io/") {
                let image = format!("kubebrain.io/{image}");
                assert!(images.contains(&image), "{name}: {image}");
                found += 1;
            }
        }
    }
    assert_eq!(found, 4);
}

#[test]
fn plain_yaml_and_chart_name_the_same_images() {
    let deployment = only("yaml/operator/operator.yaml", "Deployment");
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], format!("{OPERATOR}:{VERSION}"));
    let default = format!("--default-image={BRAIN}");
    assert!(strings(&container["args"]).contains(&default.as_str()));
    let values = &objects("helm/kubebrain-operator/values.yaml")[0];
    assert_eq!(values["image"]["repository"], OPERATOR);
    assert_eq!(values["defaultImage"], BRAIN);
    let flags = text("../operator/src/flags.rs");
    assert!(
        flags.contains(&format!("default_value = \"{BRAIN}\"")),
        "the operator's own default"
    );
}
