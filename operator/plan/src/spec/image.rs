//! The brain's image: repository, and tag or digest.

use crds::KubeBrainCluster;
use crds::cluster::image::Image;
use crds::cluster::status::PinnedImage;

use crate::spec::is_external;

/// Returns the image to run. A repository of the spec gets the version as its tag, or the digest. Without a repository, the operator's
/// default is used: unchanged if it has a tag or digest of its own, else with the version. A digest of the spec takes precedence.
pub(super) fn resolve(image: Option<&Image>, version: &str, default: &str) -> String {
    let (repository, digest) = image.map_or((None, None), |image| {
        (image.repository.as_deref(), image.digest.as_deref())
    });
    match (repository, digest) {
        (Some(repository), Some(digest)) => format!("{}@{digest}", untagged(repository)),
        (Some(repository), None) => format!("{}:{version}", untagged(repository)),
        (None, Some(digest)) => format!("{}@{digest}", untagged(default)),
        (None, None) if untagged(default) == default => format!("{default}:{version}"),
        (None, None) => default.to_owned(),
    }
}

/// Returns the image that a cluster must run: the last image it ran, as long as the part of the spec that chose it is unchanged. A default
/// of the operator replaces it only if its version is higher, and only after the status has recorded the running image.
pub fn choose(cluster: &KubeBrainCluster, default: &str) -> String {
    let spec = &cluster.spec;
    let resolved = resolve(spec.image.as_ref(), &spec.version, default);
    if let Some(unrecorded) = unrecorded(cluster) {
        return unrecorded;
    }
    match pinned(cluster) {
        Some(pinned) if pinned != resolved && !is_newer(&resolved, &pinned) => pinned,
        _ => resolved,
    }
}

/// Returns the last image that a cluster ran and the newer default that must replace it, if any.
pub fn moves(cluster: &KubeBrainCluster, default: &str) -> Option<ImageMove> {
    let from = pinned(cluster)?;
    let to = choose(cluster, default);
    (from != to).then_some(ImageMove { from, to })
}

/// A change of the image that does not come from the spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageMove {
    pub from: String,
    pub to: String,
}

/// Returns the record of an image that all members run.
pub fn record(cluster: &KubeBrainCluster, image: &str) -> PinnedImage {
    let given = cluster.spec.image.clone().unwrap_or_default();
    PinnedImage {
        image: image.to_owned(),
        version: cluster.spec.version.clone(),
        repository: given.repository,
        digest: given.digest,
    }
}

/// Returns the last image that all members ran, if the same part of the spec chose it.
fn pinned(cluster: &KubeBrainCluster) -> Option<String> {
    let pinned = cluster.status.as_ref()?.pinned_image.as_ref()?;
    (*pinned == record(cluster, &pinned.image)).then(|| pinned.image.clone())
}

/// Returns the image that an older operator gave to the members without recording it. It must be recorded first, because the status names
/// the next image as soon as the cluster moves.
pub fn unrecorded(cluster: &KubeBrainCluster) -> Option<String> {
    let status = cluster.status.as_ref().filter(|_| !is_external(cluster))?;
    let is_current = status.observed_generation == cluster.metadata.generation && status.version.is_some();
    status
        .image
        .clone()
        .filter(|_| is_current && status.pinned_image.is_none())
}

/// Returns true if the tag of an image is a higher version than that of another one.
pub fn is_newer(image: &str, than: &str) -> bool {
    matches!((version(image), version(than)), (Some(one), Some(other)) if one > other)
}

/// Returns the default image if it is a higher version of `image`, from the same repository.
pub fn newer_default<'a>(image: &str, default: &'a str) -> Option<&'a str> {
    (untagged(image) == untagged(default) && is_newer(default, image)).then_some(default)
}

/// Returns the version in the tag of an image; `None` if the tag is not a version, or if the image has a digest.
fn version(image: &str) -> Option<(u64, u64, u64)> {
    if image.contains('@') {
        return None;
    }
    let tag = image.strip_prefix(untagged(image))?.strip_prefix(':')?;
    let mut parts = tag.strip_prefix('v').unwrap_or(tag).splitn(3, '.').map(str::parse);
    let mut part = || parts.next()?.ok();
    Some((part()?, part()?, part()?))
}

/// Returns the repository alone. A colon before the last slash belongs to a port.
fn untagged(image: &str) -> &str {
    let image = image.split_once('@').map_or(image, |(image, _)| image);
    let name = image.rfind('/').map_or(0, |slash| slash + 1);
    image[name..].find(':').map_or(image, |colon| &image[..name + colon])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(repository: Option<&str>, digest: Option<&str>, default: &str, image: &str) {
        let given = Image {
            repository: repository.map(str::to_owned),
            digest: digest.map(str::to_owned),
            ..Image::default()
        };
        assert_eq!(resolve(Some(&given), "1.2.3", default), image);
    }

    #[test]
    fn the_spec_wins_over_the_default() {
        check(Some("r:5000/brain"), None, "d/brain:9", "r:5000/brain:1.2.3");
        check(Some("r/brain"), Some("sha256:ab"), "d/brain:9", "r/brain@sha256:ab");
        check(None, Some("sha256:ab"), "d:5000/brain:9", "d:5000/brain@sha256:ab");
    }

    #[test]
    fn the_default_is_used_as_it_stands_or_gets_the_version() {
        check(None, None, "d:5000/brain:9", "d:5000/brain:9");
        check(None, None, "d/brain@sha256:cd", "d/brain@sha256:cd");
        check(None, None, "d:5000/brain", "d:5000/brain:1.2.3");
        assert_eq!(resolve(None, "1.2.3", "brain"), "brain:1.2.3");
    }

    /// Checks the image for a cluster of version 0.1.0 that runs the image `runs`, with this default.
    #[track_caller]
    fn chosen(runs: &str, default: &str, expected: &str) {
        let mut cluster = crate::testing::cluster(serde_json::json!({}));
        let pinned = record(&cluster, runs);
        cluster.status = Some(crds::KubeBrainClusterStatus {
            pinned_image: Some(pinned),
            ..crds::KubeBrainClusterStatus::default()
        });
        assert_eq!(choose(&cluster, default), expected, "{runs} by {default}");
        assert_eq!(moves(&cluster, default).is_some(), runs != expected);
    }

    #[test]
    fn default_moves_a_cluster_only_by_a_higher_version() {
        let runs = "a/brain:0.1.0";
        for other in [
            "b/brain",
            "a/brain:latest",
            "a/brain:0.1.0",
            "a/brain:0.0.9",
            "b@sha256:aa",
            "b:0.2.0@sha256:aa",
            "b:1",
        ] {
            chosen(runs, other, runs);
        }
        for newer in ["a/brain:0.1.1", "b:5000/brain:v1.0.0"] {
            chosen(runs, newer, newer);
        }
        chosen("a/brain@sha256:aa", "a/brain:0.2.0", "a/brain@sha256:aa");
    }

    #[test]
    fn spec_that_changes_takes_the_default_of_its_time() {
        let mut cluster = crate::testing::cluster(serde_json::json!({"image": {"repository": "own/brain"}}));
        let pinned = record(&cluster, "own/brain:0.1.0");
        cluster.status = Some(crds::KubeBrainClusterStatus {
            pinned_image: Some(pinned),
            ..crds::KubeBrainClusterStatus::default()
        });
        cluster.spec.image = None;
        assert_eq!(choose(&cluster, "a/brain"), "a/brain:0.1.0");
        assert_eq!(moves(&cluster, "a/brain"), None, "the spec asked for it");
    }

    #[test]
    fn image_that_an_older_operator_told_the_members_to_run_is_kept() {
        let mut cluster = crate::testing::cluster(serde_json::json!({}));
        cluster.status = Some(crds::KubeBrainClusterStatus {
            observed_generation: Some(1),
            version: Some("0.1.0".to_owned()),
            image: Some("a/brain:0.1.0".to_owned()),
            ..crds::KubeBrainClusterStatus::default()
        });
        for default in ["wrong/brain", "a/brain:0.2.0"] {
            assert_eq!(choose(&cluster, default), "a/brain:0.1.0");
            assert_eq!(moves(&cluster, default), None, "it is not recorded yet");
        }
        cluster.metadata.generation = Some(2);
        assert_eq!(
            choose(&cluster, "wrong/brain"),
            "wrong/brain:0.1.0",
            "the spec is another one"
        );
    }
}
