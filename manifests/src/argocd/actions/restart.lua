-- Handled once and recorded in status.lastHandledRestart: an annotation is no drift from git.
local os = require("os")
if obj.metadata.annotations == nil then
  obj.metadata.annotations = {}
end
obj.metadata.annotations["kubebrain.io/restart"] = os.date("!%Y-%m-%dT%H:%M:%SZ")
return obj
