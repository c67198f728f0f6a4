-- Handled once and recorded in status.lastHandledTransfer: an annotation is no drift from git.
-- The time makes the wish differ from the former one.
local os = require("os")
if obj.metadata.annotations == nil then
  obj.metadata.annotations = {}
end
obj.metadata.annotations["kubebrain.io/transfer-leader"] = "any@" .. os.date("!%Y-%m-%dT%H:%M:%SZ")
return obj
