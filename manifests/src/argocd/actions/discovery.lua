local paused = obj.spec ~= nil and obj.spec.paused == true
local actions = {}
actions["restart"] = { ["disabled"] = paused }
actions["transfer-leader"] = { ["disabled"] = paused }
actions["pause"] = { ["disabled"] = paused }
actions["resume"] = { ["disabled"] = not paused }
return actions
