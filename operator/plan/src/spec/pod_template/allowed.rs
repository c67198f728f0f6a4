//! The fields that a podTemplate may set without `--allow-unsafe-pods`. A field that is not listed is refused, so a future field grants no
//! right that was not reviewed. The parent module checks values of fields that may hold more than a brain needs.

use serde_json::Value;

/// Fields and entries below a value.
pub(super) enum AllowedShape {
    /// Anything.
    Any,
    /// These fields and no others.
    Map(&'static [(&'static str, AllowedShape)]),
    /// Entries of one shape.
    List(&'static AllowedShape),
    /// A map with any keys.
    Keys,
}

use AllowedShape::{Any, Keys, List, Map};

/// A PodTemplateSpec.
pub(super) const TEMPLATE: AllowedShape = Map(&[
    ("metadata", Map(&[("annotations", Keys), ("labels", Keys)])),
    ("spec", POD),
]);

const POD: AllowedShape = Map(&[
    ("affinity", Any),
    ("automountServiceAccountToken", Any),
    ("containers", List(&CONTAINER)),
    ("dnsConfig", Any),
    ("dnsPolicy", Any),
    ("enableServiceLinks", Any),
    ("hostAliases", Any),
    ("hostIPC", Any),
    ("hostNetwork", Any),
    ("hostPID", Any),
    ("hostUsers", Any),
    ("imagePullSecrets", Any),
    ("initContainers", List(&CONTAINER)),
    ("nodeName", Any),
    ("nodeSelector", Any),
    ("os", Any),
    ("overhead", Any),
    ("preemptionPolicy", Any),
    ("priority", Any),
    ("priorityClassName", Any),
    ("readinessGates", Any),
    ("resources", Map(RESOURCES)),
    ("restartPolicy", Any),
    ("runtimeClassName", Any),
    ("schedulerName", Any),
    ("schedulingGates", Any),
    ("securityContext", POD_SECURITY),
    ("serviceAccount", Any),
    ("serviceAccountName", Any),
    ("setHostnameAsFQDN", Any),
    ("shareProcessNamespace", Any),
    ("terminationGracePeriodSeconds", Any),
    ("tolerations", Any),
    ("topologySpreadConstraints", Any),
    ("volumes", List(&VOLUME)),
]);

const RESOURCES: &[(&str, AllowedShape)] = &[("limits", Any), ("requests", Any)];

const CONTAINER: AllowedShape = Map(&[
    ("args", Any),
    ("command", Any),
    ("env", List(&ENV)),
    (
        "envFrom",
        List(&Map(&[
            ("configMapRef", REFERENCE),
            ("prefix", Any),
            ("secretRef", REFERENCE),
        ])),
    ),
    ("image", Any),
    ("imagePullPolicy", Any),
    (
        "lifecycle",
        Map(&[("postStart", HOOK), ("preStop", HOOK), ("stopSignal", Any)]),
    ),
    ("livenessProbe", PROBE),
    ("name", Any),
    ("ports", Any),
    ("readinessProbe", PROBE),
    ("resizePolicy", Any),
    ("resources", Map(RESOURCES)),
    ("restartPolicy", Any),
    ("restartPolicyRules", Any),
    ("securityContext", CONTAINER_SECURITY),
    ("startupProbe", PROBE),
    ("stdin", Any),
    ("stdinOnce", Any),
    ("terminationMessagePath", Any),
    ("terminationMessagePolicy", Any),
    ("tty", Any),
    (
        "volumeMounts",
        List(&Map(&[
            ("mountPath", Any),
            ("mountPropagation", Any),
            ("name", Any),
            ("readOnly", Any),
            ("recursiveReadOnly", Any),
            ("subPath", Any),
            ("subPathExpr", Any),
        ])),
    ),
    ("workingDir", Any),
]);

const ENV: AllowedShape = Map(&[
    ("name", Any),
    ("value", Any),
    (
        "valueFrom",
        Map(&[
            ("configMapKeyRef", KEY),
            ("fieldRef", Any),
            ("resourceFieldRef", Any),
            ("secretKeyRef", KEY),
        ]),
    ),
]);

const KEY: AllowedShape = Map(&[("key", Any), ("name", Any), ("optional", Any)]);
const REFERENCE: AllowedShape = Map(&[("name", Any), ("optional", Any)]);

const HOOK: AllowedShape = Map(&[
    ("exec", Any),
    ("httpGet", HTTP_GET),
    ("sleep", Any),
    ("tcpSocket", TCP_SOCKET),
]);

const PROBE: AllowedShape = Map(&[
    ("exec", Any),
    ("failureThreshold", Any),
    ("grpc", Any),
    ("httpGet", HTTP_GET),
    ("initialDelaySeconds", Any),
    ("periodSeconds", Any),
    ("successThreshold", Any),
    ("tcpSocket", TCP_SOCKET),
    ("terminationGracePeriodSeconds", Any),
    ("timeoutSeconds", Any),
]);

const HTTP_GET: AllowedShape = Map(&[
    ("host", Any),
    ("httpHeaders", Any),
    ("path", Any),
    ("port", Any),
    ("scheme", Any),
]);
const TCP_SOCKET: AllowedShape = Map(&[("host", Any), ("port", Any)]);

const PROFILE: AllowedShape = Map(&[("localhostProfile", Any), ("type", Any)]);
const WINDOWS: AllowedShape = Map(&[("hostProcess", Any)]);
/// Only an empty one is allowed; see the parent module.
const SELINUX: AllowedShape = Any;

const POD_SECURITY: AllowedShape = Map(&[
    ("appArmorProfile", PROFILE),
    ("fsGroup", Any),
    ("fsGroupChangePolicy", Any),
    ("runAsGroup", Any),
    ("runAsNonRoot", Any),
    ("runAsUser", Any),
    ("seLinuxChangePolicy", Any),
    ("seLinuxOptions", SELINUX),
    ("seccompProfile", PROFILE),
    ("supplementalGroups", Any),
    ("supplementalGroupsPolicy", Any),
    ("sysctls", Any),
    ("windowsOptions", WINDOWS),
]);

const CONTAINER_SECURITY: AllowedShape = Map(&[
    ("allowPrivilegeEscalation", Any),
    ("appArmorProfile", PROFILE),
    ("capabilities", Map(&[("add", Any), ("drop", Any)])),
    ("privileged", Any),
    ("procMount", Any),
    ("readOnlyRootFilesystem", Any),
    ("runAsGroup", Any),
    ("runAsNonRoot", Any),
    ("runAsUser", Any),
    ("seLinuxOptions", SELINUX),
    ("seccompProfile", PROFILE),
    ("windowsOptions", WINDOWS),
]);

/// Kinds of volumes that grant nothing but their content: those of the restricted pod security standard, without claims of others and
/// without drivers that use a Secret of their own. A claim of the pod's own begins empty.
const VOLUME: AllowedShape = Map(&[
    ("configMap", Map(CONFIG_MAP)),
    ("downwardAPI", Any),
    ("emptyDir", Any),
    (
        "ephemeral",
        Map(&[(
            "volumeClaimTemplate",
            Map(&[
                ("metadata", Map(&[("labels", Keys)])),
                (
                    "spec",
                    Map(&[
                        ("accessModes", Any),
                        ("resources", Map(RESOURCES)),
                        ("storageClassName", Any),
                        ("volumeAttributesClassName", Any),
                        ("volumeMode", Any),
                    ]),
                ),
            ]),
        )]),
    ),
    ("name", Any),
    (
        "projected",
        Map(&[
            ("defaultMode", Any),
            (
                "sources",
                List(&Map(&[
                    ("configMap", Map(CONFIG_MAP)),
                    ("downwardAPI", Any),
                    ("secret", Map(&[("items", Any), ("name", Any), ("optional", Any)])),
                ])),
            ),
        ]),
    ),
    (
        "secret",
        Map(&[
            ("defaultMode", Any),
            ("items", Any),
            ("optional", Any),
            ("secretName", Any),
        ]),
    ),
]);

const CONFIG_MAP: &[(&str, AllowedShape)] = &[("defaultMode", Any), ("items", Any), ("name", Any), ("optional", Any)];

/// Returns the path of the first field that `shape` does not have. A null sets nothing, and the API server refuses values of wrong types.
pub(super) fn stranger(value: &Value, shape: &AllowedShape, path: &str) -> Option<String> {
    match (shape, value) {
        (Map(known), Value::Object(fields)) => fields.iter().find_map(|(field, value)| {
            let path = if path.is_empty() {
                field.clone()
            } else {
                format!("{path}.{field}")
            };
            match known.iter().find(|(name, _)| name == field) {
                Some((_, shape)) => stranger(value, shape, &path),
                None => (!value.is_null()).then_some(path),
            }
        }),
        (List(shape), Value::Array(entries)) => {
            let mut entries = entries.iter().enumerate();
            entries.find_map(|(i, entry)| stranger(entry, shape, &format!("{path}[{i}]")))
        }
        _ => None,
    }
}

/// Collects every path that `shape` allows, with `[]` for entries of lists.
#[cfg(test)]
pub(super) fn paths(shape: &AllowedShape, path: &str, all: &mut Vec<String>) {
    match shape {
        Any | Keys => all.push(path.to_owned()),
        List(shape) => paths(shape, &format!("{path}[]"), all),
        Map(fields) => {
            for (field, shape) in *fields {
                paths(shape, &format!("{path}.{field}"), all);
            }
        }
    }
}
