//! Tokens and passwords.

use std::path::PathBuf;
use std::time::Duration;

use super::super::duration;
use super::Values;
use api::auth::{AuthOptions, JwtOptions, SignMethod, TokenOptions};

/// etcd's text for options that it cannot use.
const INVALID: &str = "auth: invalid auth options";

/// The lifetime of a JWT if none is given, as in etcd.
const JWT_TTL: Duration = Duration::from_secs(300);

/// The cost of hashed passwords if the one that is given does not work, as in etcd.
const BCRYPT_COST: u32 = 10;

/// The lifetime of a simple token if 0 is given, as in etcd.
const SIMPLE_TTL: Duration = Duration::from_secs(300);

pub(super) fn read(values: &Values<'_>, warnings: &mut Vec<String>) -> Result<AuthOptions, String> {
    let mut bcrypt_cost = values.number("bcrypt-cost")?;
    if !(4..=31).contains(&bcrypt_cost) {
        let origin = values.origin("bcrypt-cost");
        warnings.push(format!(
            "{origin} of {bcrypt_cost} is not in 4 to 31: the cost is {BCRYPT_COST}"
        ));
        bcrypt_cost = BCRYPT_COST;
    }
    Ok(AuthOptions {
        token: token(values, warnings)?,
        bcrypt_cost,
        client_cert_auth: values.bool("client-cert-auth"),
    })
}

fn token(values: &Values<'_>, warnings: &mut Vec<String>) -> Result<TokenOptions, String> {
    let mut parts = values.text("auth-token").split(',');
    let kind = parts.next().unwrap_or_default();
    let mut options: Vec<(&str, &str)> = Vec::new();
    for part in parts {
        match part.split_once('=') {
            Some((name, value)) if !value.contains('=') && options.iter().all(|(given, _)| *given != name) => {
                options.push((name, value));
            }
            _ => return Err(values.error("auth-token", format!("{INVALID}: {part:?}"))),
        }
    }
    match kind {
        "" => Ok(TokenOptions::None),
        "simple" => {
            let ttl = Duration::from_secs(values.number::<u32>("auth-token-ttl")?.into());
            let ttl = if ttl.is_zero() { SIMPLE_TTL } else { ttl };
            Ok(TokenOptions::Simple { ttl })
        }
        "jwt" => jwt(values, &options, warnings).map(TokenOptions::Jwt),
        _ => Err(values.error("auth-token", format!("{INVALID}: {kind:?} is neither simple nor jwt"))),
    }
}

fn jwt(values: &Values<'_>, options: &[(&str, &str)], warnings: &mut Vec<String>) -> Result<JwtOptions, String> {
    let mut jwt = JwtOptions {
        method: None,
        public_key: None,
        private_key: None,
        ttl: JWT_TTL,
    };
    let given = options.iter().filter(|(_, value)| !value.is_empty());
    for (name, value) in given {
        match *name {
            "sign-method" => jwt.method = SignMethod::named(value),
            "pub-key" => jwt.public_key = Some(PathBuf::from(value)),
            "priv-key" => jwt.private_key = Some(PathBuf::from(value)),
            "ttl" => {
                let ttl = duration::parse(value);
                jwt.ttl =
                    ttl.map_err(|what| values.error("auth-token", format!("{INVALID}: ttl {value:?}: {what}")))?;
            }
            _ => warnings.push(format!("unknown JWT options: {name}")),
        }
    }
    if jwt.method.is_none() {
        let names: Vec<_> = SignMethod::ALL.iter().map(|(name, _)| *name).collect();
        let what = format!("{INVALID}: sign-method must be one of {}", names.join(", "));
        return Err(values.error("auth-token", what));
    }
    if jwt.private_key.is_none() && jwt.public_key.is_none() {
        return Err(values.error("auth-token", "auth: missing key data: set priv-key, pub-key or both"));
    }
    Ok(jwt)
}
