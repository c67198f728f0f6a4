//! Passwords are hashed, and compared with hashes.

use super::hashing_limit::PasswordOrigin;
use super::methods::Authenticator;
use etcd_types::errors::Error;

impl Authenticator {
    /// Returns the bcrypt hash of a password.
    ///
    /// # Errors
    /// [`Error::PasswordTooLong`]; [`Error::TooManyRequests`]; [`Error::Stopped`] if the process ends.
    pub(super) async fn hash(&self, password: String) -> Result<String, Error> {
        let cost = self.bcrypt_cost;
        check_password(&password)?;
        let hashed = self
            .busy(PasswordOrigin::default(), move || bcrypt::hash(password, cost))
            .await?;
        hashed.map_err(|error| {
            tracing::error!(error = &error as &dyn std::error::Error, "cannot hash a password");
            Error::Unhealthy
        })
    }

    /// Returns true if a password has this hash.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`]; [`Error::Stopped`] if the process ends.
    pub(super) async fn verify(&self, origin: PasswordOrigin, password: String, hash: String) -> Result<bool, Error> {
        self.busy(origin, move || bcrypt::verify(password, &hash).unwrap_or(false))
            .await
    }

    /// Computes in a thread of its own, when it is the turn of `origin`.
    async fn busy<T: Send + 'static>(
        &self,
        origin: PasswordOrigin,
        compute: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let turn = self.hashing.take(origin).await?;
        let computing = tokio::task::spawn_blocking(move || {
            // It is not stopped when the client leaves.
            let _turn = turn;
            compute()
        });
        computing.await.map_err(|_| Error::Stopped)
    }
}

/// Checks the length of a password that will be hashed. bcrypt uses only the first 72 bytes: Go's implementation refuses longer passwords
/// when it hashes, and ignores the rest when it compares.
pub(super) fn check_password(password: &str) -> Result<(), Error> {
    if password.len() > 72 {
        Err(Error::PasswordTooLong)
    } else {
        Ok(())
    }
}
