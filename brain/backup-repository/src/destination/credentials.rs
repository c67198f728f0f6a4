//! Credentials in files: that of the tools of AWS, with sections of `name = value`, and a file for each of a provider's variables.

use std::path::Path;

use super::{DestinationError, Variables};

/// Credentials of one profile.
#[derive(PartialEq, Eq)]
pub(super) struct SharedCredentials {
    pub(super) access_key_id: String,
    pub(super) secret_access_key: String,
    pub(super) session_token: Option<String>,
}

/// Reads a profile. Fails if the file does not have it, or if it has no keys.
pub(super) fn read(path: &Path, profile: &str) -> Result<SharedCredentials, DestinationError> {
    let failed = |why: String| DestinationError(format!("the credentials file {} {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| failed(format!("cannot be read: {error}")))?;
    let value = |name: &str| value(&text, profile, name);
    let needed = |name: &str| value(name).ok_or_else(|| failed(format!("has no {name} in its profile {profile:?}")));
    Ok(SharedCredentials {
        access_key_id: needed("aws_access_key_id")?,
        secret_access_key: needed("aws_secret_access_key")?,
        session_token: value("aws_session_token"),
    })
}

/// Reads the provider's variables from files with their names. A mounted Secret is such a directory.
pub(super) fn in_directory(directory: &Path) -> Result<Variables, DestinationError> {
    let failed = |path: &Path, error: &dyn std::fmt::Display| {
        DestinationError(format!("the credentials in {} cannot be read: {error}", path.display()))
    };
    let mut all = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(|error| failed(directory, &error))? {
        let path = entry.map_err(|error| failed(directory, &error))?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default()
            .to_owned();
        // The kubelet keeps directories beside the files, and a pipe would be waited for.
        if Variables::is_of_provider(&name) && path.is_file() {
            let value = std::fs::read_to_string(&path).map_err(|error| failed(&path, &error))?;
            all.push((name, value));
        }
    }
    Ok(Variables::of(all))
}

fn value(text: &str, profile: &str, name: &str) -> Option<String> {
    let mut is_inside = false;
    for line in text.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            is_inside = section.trim() == profile;
        } else if is_inside
            && let Some((found, value)) = line.split_once('=')
            && found.trim() == name
        {
            return Some(value.trim().to_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
# of two users
[default]
aws_access_key_id = ONE
aws_secret_access_key=a=b

[ other ]
aws_access_key_id=TWO
aws_secret_access_key=c
aws_session_token = t
[empty]
";

    #[test]
    fn variables_are_read_from_files_with_their_names() {
        let dir = tempfile::TempDir::new().unwrap();
        std::fs::create_dir(dir.path().join("..data")).unwrap();
        std::fs::create_dir(dir.path().join("AWS_SESSION_TOKEN")).unwrap();
        for (name, value) in [("AWS_ACCESS_KEY_ID", "ONE\n"), ("AWS_REGION", "\n"), ("PATH", "/bin")] {
            std::fs::write(dir.path().join(name), value).unwrap();
        }
        let found = in_directory(dir.path()).ok().unwrap();
        assert_eq!(
            found,
            Variables::of([("AWS_ACCESS_KEY_ID".to_owned(), "ONE".to_owned())])
        );
        std::fs::write(dir.path().join("AZURE_CLIENT_ID"), [0xff]).unwrap();
        let error = in_directory(dir.path()).err().unwrap().to_string();
        assert!(error.contains("AZURE_CLIENT_ID cannot be read"), "{error}");
        let error = in_directory(&dir.path().join("none")).err().unwrap().to_string();
        assert!(error.contains("none cannot be read"), "{error}");
    }

    #[test]
    fn profiles_are_read() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("credentials");
        std::fs::write(&path, FILE).unwrap();
        let one = read(&path, "default").ok().unwrap();
        assert_eq!(
            (one.access_key_id.as_str(), one.secret_access_key.as_str()),
            ("ONE", "a=b")
        );
        assert_eq!(one.session_token, None);
        let two = read(&path, "other").ok().unwrap();
        assert_eq!(
            (two.access_key_id.as_str(), two.session_token.as_deref()),
            ("TWO", Some("t"))
        );
        for profile in ["empty", "unknown"] {
            let error = read(&path, profile).err().unwrap().to_string();
            assert!(
                error.contains(&format!("has no aws_access_key_id in its profile {profile:?}")),
                "{error}"
            );
        }
        let error = read(&dir.path().join("none"), "default").err().unwrap().to_string();
        assert!(error.contains("cannot be read"), "{error}");
    }
}
