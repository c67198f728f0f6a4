//! The brain's image: repository, and tag or digest.

use crds::cluster::image::Image;

/// The image to run. A repository of the spec gets the version as its tag, or the digest. Without a repository the operator's
/// default is used: as it stands if it has a tag or digest of its own, else with the version; a digest of the spec wins.
pub(crate) fn resolve(image: Option<&Image>, version: &str, default: &str) -> String {
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

/// The repository alone. A colon before the last slash belongs to a port.
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
}
